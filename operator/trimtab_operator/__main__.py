"""`python -m trimtab_operator`: the same as the `trimtab-operator` command."""

from trimtab_operator.main import main

main()
