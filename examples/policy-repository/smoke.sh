#!/bin/sh
set -eu
SLUICE_TOKEN=$SMOKE_TOKEN sluice call notes list_notes
sluice policy explain --server notes --tool delete_note | grep '^deny '
