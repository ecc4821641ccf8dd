"""The server of Muster. Its folders stand at the top of the tree; this package only names them.

Importing it registers all systems, so that any module below may read their roles.
"""

from muster_server.systems import listed as listed
