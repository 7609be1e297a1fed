"""Known traps in the manifests of vLLM, found before they are applied.

In: documents of manifest files. Out: one report per engine container, with findings and their places. Pure: files are
read and exit codes chosen in cli/lint.py. A command line that Trimtab would refuse to rewrite is linted as far as it
can be read.
Hazard: findings go to logs of CI, so no message ever quotes a value that can be a secret.
"""
