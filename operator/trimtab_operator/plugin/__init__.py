"""`kubectl trimtab`: what people see and do at the terminal. Talks through the kubectl that called it, so contexts,
proxies and logins are the person's own; nothing here imports the Kubernetes client, which alone takes longer to load
than `status` may take.
"""
