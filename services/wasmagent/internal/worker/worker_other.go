//go:build !linux && !darwin && !freebsd

package worker

import (
	"errors"
	"net"
	"os"
	"os/exec"
)

var errNotHere = errors.New("agents run only on Unix")

func inherited() (net.Conn, error) { return nil, errNotHere }

func connected(*exec.Cmd) (net.Conn, *os.File, error) { return nil, nil, errNotHere }

func bound(int64) error { return errNotHere }
