//go:build !unix

package connlimit

import "net"

// waiting returns false, because this system can't look for unread data.
func waiting(net.Conn) bool { return false }
