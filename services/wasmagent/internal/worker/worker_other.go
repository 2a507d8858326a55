//go:build !linux && !darwin && !freebsd

package worker

import (
	"errors"
	"net"
	"os"
	"os/exec"
)

var errUnsupported = errors.New("agents run only on Linux, macOS and FreeBSD")

func inheritedConn() (net.Conn, error) { return nil, errUnsupported }

func connectWorker(*exec.Cmd) (net.Conn, *os.File, error) { return nil, nil, errUnsupported }

func limitResources(int64) error { return errUnsupported }
