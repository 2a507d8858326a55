package keychain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/godbus/dbus/v5"
)

// session is a connection to the session bus. The keyring library uses the shared connection of package dbus, and no
// other package of this program uses that connection. Therefore closing it cancels the library's request and the
// dialog.
type session struct {
	mu     sync.Mutex
	conn   *dbus.Conn
	closed bool
}

func (s *session) open() error {
	if !hasBus() {
		return errors.New("there is no keychain here: the environment has no D-Bus session (DBUS_SESSION_BUS_ADDRESS)")
	}
	conn, err := dbus.SessionBus()
	if err != nil {
		return fmt.Errorf("there is no keychain here: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn = conn; s.closed {
		_ = conn.Close()
		return ErrNoAnswer
	}
	return nil
}

// close closes the connection. It may be called at any time, and more than once.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed = true; s.conn != nil {
		_ = s.conn.Close()
	}
}

// hasBus reports whether package dbus can find the address of a session bus. If it can't, package dbus must not be
// used, because it would start a bus.
func hasBus() bool {
	if address := os.Getenv("DBUS_SESSION_BUS_ADDRESS"); address != "" && address != "autolaunch:" { //nolint:forbidigo // package dbus reads it too
		return true
	}
	folder := filepath.Join("/run/user", strconv.Itoa(os.Getuid()))
	for _, name := range []string{"bus", "dbus-session"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			return true
		}
	}
	return false
}
