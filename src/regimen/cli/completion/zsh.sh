#compdef regimen
# zsh completion of regimen; in ~/.zshrc, after compinit:  eval "$(regimen completion zsh)"
_regimen() {
  local -a flags words_ verbs_
  verbs_=(
@VERBS@
  )
  if (( CURRENT == 2 )); then _describe 'verb' verbs_; return; fi
  case "$words[CURRENT-1]" in
@VALUES@
  esac
  case "$words[2]" in
@CASES@
  esac
  if [[ "$words[CURRENT]" == -* ]]; then compadd -- $flags
  else compadd -- $words_; _files -/; fi
}
compdef _regimen regimen
