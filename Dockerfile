# One image for all of Trimtab: the operator (trimtab-operator), the emulator (trimtab emulate, also as a stand-in `vllm`), the load
# client (trimtab load). Runs as any non-root user with a read-only root filesystem; give it an emptyDir at /tmp for studies and reports.
#   docker build -t trimtab .
ARG BASE=python:3.11-slim-bookworm

# What to install, as a file of its own: editing any other part of pyproject.toml leaves the big layer below alone.
FROM ${BASE} AS requirements
COPY pyproject.toml /
RUN python -c "import tomllib; p = tomllib.load(open('/pyproject.toml', 'rb'))['project']; print('\n'.join(p['dependencies'] + [r for extra in ('operator', 'postgres', 'dashboard') for r in p['optional-dependencies'][extra]]))" > /requirements.txt

FROM ${BASE} AS wheel
RUN pip install --no-cache-dir --root-user-action=ignore "hatchling>=1.27"
COPY pyproject.toml README.md LICENSE /src/
COPY operator /src/operator
COPY tuner /src/tuner
RUN pip wheel -q --no-deps --no-build-isolation -w /wheels /src

FROM ${BASE} AS packages
COPY --from=requirements /requirements.txt /opt/trimtab/
COPY constraints.txt /opt/trimtab/
# Compiled here, once: with a read-only root no .pyc could be written later. The packages' own tests are a fifth of their size.
RUN pip install --no-cache-dir --no-compile --root-user-action=ignore -r /opt/trimtab/requirements.txt -c /opt/trimtab/constraints.txt \
 && site=$(python -c "import kopf, os; print(os.path.dirname(os.path.dirname(kopf.__file__)))") \
 && find "$site" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} + \
 && { python -m compileall -q -j 0 "$site" "$(python -c "import sysconfig; print(sysconfig.get_path('stdlib'))")" >/dev/null || true; } \
 && python -c "import aiohttp, kopf, kubernetes, numba, numpy, optuna, optuna_dashboard, prometheus_api_client, prometheus_client, psycopg, pydantic, rich, scipy.stats, starlette, typer, uvicorn, yaml" \
 && mkdir -p /opt/emulate/bin \
 && printf '#!/bin/sh\n# So that manifests for a real vLLM run the emulator unchanged.\nexec trimtab emulate "$@"\n' > /opt/emulate/bin/vllm \
 && chmod 755 /opt/emulate/bin/vllm
# The same machine code on every processor of the architecture, here and when it runs: numba looks for its own by processor.
ENV NUMBA_CPU_NAME=generic

# The simulator's machine code (15 s), made anew only when the simulator changes. The sources lie where they will be installed.
FROM packages AS machine-code
COPY tuner/trimtab/__init__.py tuner/trimtab/errors.py /src/trimtab/
COPY tuner/trimtab/simulate /src/trimtab/simulate
RUN cp -r /src/trimtab "$(python -c "import sysconfig; print(sysconfig.get_path('purelib'))")" \
 && XDG_CACHE_HOME=/compiled python -m trimtab.simulate.precompile \
 && chmod -R a+rX /compiled

FROM packages
COPY --from=machine-code /compiled/trimtab /opt/trimtab/compiled
# From here on, what a change of the source costs: seconds.
# COPY and not `RUN --mount=from=wheel`: buildah 1.28 takes the latter from its cache even when the wheel has changed.
COPY --from=wheel /wheels /opt/trimtab/wheels
RUN pip install --no-cache-dir --no-deps --root-user-action=ignore /opt/trimtab/wheels/*.whl && rm -r /opt/trimtab/wheels \
 && folder=$(XDG_CACHE_HOME=/tmp python -c "from trimtab.simulate.compiled import cache_folder; print(cache_folder().name)") \
 && { test -d "/opt/trimtab/compiled/$folder" || { echo "the machine code is not of these sources: they changed while the image was built" >&2; exit 1; }; } \
 && rm -rf /tmp/trimtab
# /tmp is the only place that libraries may write to.
ENV HOME=/tmp MPLCONFIGDIR=/tmp TRIMTAB_COMPILED=/opt/trimtab/compiled PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["trimtab"]
