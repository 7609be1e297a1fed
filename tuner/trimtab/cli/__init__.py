"""The `trimtab` command. Each command is one module, loaded only when it is called, so that `--help` starts fast."""
