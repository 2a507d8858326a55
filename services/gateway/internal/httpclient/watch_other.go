//go:build !unix

package httpclient

import "net"

// watch returns a function that always returns true, because connections cannot be checked on this system. If the
// server has closed the connection, the next request on it fails.
func watch(net.Conn) (alive func() bool) { return func() bool { return true } }
