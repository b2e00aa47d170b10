#!/bin/sh
exec /opt/fairlead/@VERSION@/python/bin/@PYTHON@ -I -S -X utf8=1 -m shim.main "$@"
