"""Hilo as a Ray Serve deployment: each replica runs one server process and passes HTTP through to it.

```console
$ serve run hilo_ray:app flags="--model-id demo" max_replicas=4
```
"""

from hilo_ray.application import Arguments, app
from hilo_ray.deployment import Hilo

__all__ = ["Arguments", "Hilo", "app"]
