"""The Kubernetes side of Trimtab: Kopf wiring, the reconcile loop, rollout mechanics, events, telemetry."""
