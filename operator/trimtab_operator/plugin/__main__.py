"""`python -m trimtab_operator.plugin`: the plugin where its script is not on PATH."""

from trimtab_operator.plugin.app import main

main()
