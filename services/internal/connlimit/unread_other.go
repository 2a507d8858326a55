//go:build !unix

package connlimit

import "net"

// hasUnreadData returns false, because this system can't report unread data.
func hasUnreadData(net.Conn) bool { return false }
