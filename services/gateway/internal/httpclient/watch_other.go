//go:build !unix

package httpclient

import "net"

// watch cannot check connections on this system. A request on a connection that the server has closed fails.
func watch(net.Conn) (alive func() bool) { return func() bool { return true } }
