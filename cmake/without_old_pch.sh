#!/bin/sh
# without_old_pch.sh COMMAND...: compiles a header after deleting what it was
# compiled to before. ccache would take that for the content of the header, and
# return what another content was compiled to.
for argument; do
  case $argument in *.gch) rm -f "$argument" ;; esac
done
exec "$@"
