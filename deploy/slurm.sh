#!/bin/bash
#SBATCH --job-name=regimen
#SBATCH --time=04:00:00
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120
# SIGUSR1 two minutes before the end writes a checkpoint; SIGTERM saves and leaves with 143. The job that comes back into
# the queue runs this same script and goes on exactly where the last one was.
set -u
trap : TERM  # at the limit this shell gets the signal, too: it waits for the run, which is saving, and requeues the job
source "${REGIMEN_ENVIRONMENT:-.venv}/bin/activate"

srun regimen train pendulum --total-steps 5e6 --seed "${SLURM_ARRAY_TASK_ID:-0}" \
    --out "runs/pendulum-${SLURM_ARRAY_TASK_ID:-0}" --resume-if-exists --checkpoint.every "100000 steps"
code=$?

# 130 and 143: a signal ended it and its state is saved. Anything else is an end: 0 done, 3 bad settings, 5 diverged.
if [ "$code" -eq 143 ] || [ "$code" -eq 130 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
