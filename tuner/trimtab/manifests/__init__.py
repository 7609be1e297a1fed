"""Manifests as files: which workloads a text holds, and the smallest edit of that text. Pure: texts in, texts out.

Knows Kubernetes objects and YAML; reads no files and no cluster. What an engine is, it asks `trimtab.engine`.
"""
