"""Write the cluster's annotated pods as a Prometheus file_sd list, with the meta labels that kubernetes_sd_configs has.

Debian's Prometheus is built without Kubernetes discovery. This runs beside it, on the standard library alone, and
lists pods once a
second with the pod's own service account. The file is replaced at once (rename), and only when it changed; Prometheus
watches it.
"""

import json
import os
import re
import ssl
import sys
import time
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
OUT = "/discovered/pods.json"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def list_pods():
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    request = urllib.request.Request(  # resourceVersion=0: from the API server's cache, not from etcd
        f"https://{host}:{port}/api/v1/pods?resourceVersion=0",
        headers={"Authorization": f"Bearer {read(ACCOUNT + '/token')}"},  # read each time: it is renewed
    )
    context = ssl.create_default_context(cafile=ACCOUNT + "/ca.crt")
    with urllib.request.urlopen(request, context=context, timeout=5) as response:
        return json.load(response)["items"]


def group(pod):
    """One target group, or None for a pod without an address or without the annotation."""
    meta, ip = pod["metadata"], pod["status"].get("podIP")
    annotations = meta.get("annotations", {})
    if not ip or annotations.get("prometheus.io/scrape") != "true":
        return None
    prefix = "__meta_kubernetes_pod_"
    labels = {
        "__meta_kubernetes_namespace": meta["namespace"],
        prefix + "name": meta["name"],
        prefix + "ip": ip,
        prefix + "node_name": pod["spec"].get("nodeName", ""),
        prefix + "phase": pod["status"].get("phase", ""),
        prefix + "uid": meta["uid"],
    }
    for kind, values in (("label_", meta.get("labels", {})), ("annotation_", annotations)):
        for key, value in values.items():
            labels[prefix + kind + re.sub(r"[^a-zA-Z0-9_]", "_", key)] = value
    return {"targets": [ip], "labels": labels}


def main():
    written = None
    while True:
        try:
            groups = [g for g in map(group, list_pods()) if g]
            text = json.dumps(sorted(groups, key=lambda g: g["labels"]["__meta_kubernetes_pod_uid"]))
            if text != written:
                with open(OUT + ".part", "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(OUT + ".part", OUT)
                written = text
        except (OSError, ValueError, KeyError) as error:  # the API server may restart; the last list stays in force
            print(f"listing pods: {error}", file=sys.stderr, flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
