# bash completion of regimen; in ~/.bashrc:  eval "$(regimen completion bash)"
_regimen() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" flags="" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=( $(compgen -W "@VERBS@" -- "$cur") ); return
  fi
  case "$prev" in
@VALUES@
  esac
  case "${COMP_WORDS[1]}" in
@CASES@
  esac
  if [[ "$cur" == -* ]]; then COMPREPLY=( $(compgen -W "$flags" -- "$cur") )
  else COMPREPLY=( $(compgen -W "$words" -- "$cur") $(compgen -d -- "$cur") ); fi
}
complete -o default -F _regimen regimen
