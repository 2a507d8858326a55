//go:build !unix

package httpclient

import "net"

// watch returns a function that always returns true, because connections cannot be checked on this system. A request on
// a connection that the server has closed fails.
func watch(net.Conn) (alive func() bool) { return func() bool { return true } }
