"""One call of redlock-py: `lock PORTS NAME`, which prints the lock's value or `refused`, or
`unlock PORTS NAME VALUE`."""

import logging
import sys

from redlock import Lock, Redlock

# redlock-py rolls a failed lock back. At a key of another type, this is an error, which it logs.
logging.disable(logging.CRITICAL)
verb, ports, name = sys.argv[1:4]
servers = [{"host": "127.0.0.1", "port": int(port)} for port in ports.split(",")]
client = Redlock(servers, retry_count=1, retry_delay=0.01)
if verb == "lock":
    lock = client.lock(name, 20_000)
    print(lock.key.decode() if lock else "refused")
else:
    client.unlock(Lock(0, name, sys.argv[4]))
