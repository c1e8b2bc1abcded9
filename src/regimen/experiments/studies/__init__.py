"""Studies: questions about training answered by measuring, with intervals. `regimen study NAME ENV` runs one."""
