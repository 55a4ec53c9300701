#!/bin/bash
#SBATCH --job-name=solve
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
# Four nodes of dsmd, with a copy of the program on each. --kill-on-bad-exit is not needed: dsmd run
# ends all of them when one fails.
exec srun dsmd run -- ./solve "$@"
