//go:build linux

// Package noticestest provides a fake desktop notification server on a D-Bus session for tests.
package noticestest

import (
	"fmt"
	"testing"

	"github.com/godbus/dbus/v5"
)

// ID is the id that the server gives to new notices.
const ID = 7

// Notice is a desktop notification that the server has received.
type Notice struct {
	App, Title, Body string
	// Actions contains the buttons. Replaces is the id of the earlier notice that this notice replaces, or 0.
	Actions  []string
	Replaces uint32
}

// String returns all fields as a string.
func (n Notice) String() string {
	return fmt.Sprintf("%q", []any{n.App, n.Title, n.Body, n.Actions, n.Replaces})
}

// Serve serves notifications on the bus with the given address until the test ends. The channel receives all notices.
func Serve(t testing.TB, address string) <-chan Notice {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	shown := make(chan Notice, 100)
	methods := map[string]any{
		"Notify": func(app string, replaces uint32, _, title, body string, actions []string, _ map[string]dbus.Variant, _ int32) (uint32, *dbus.Error) {
			shown <- Notice{app, title, body, actions, replaces}
			return ID, nil
		},
	}
	if err := conn.ExportMethodTable(methods, "/org/freedesktop/Notifications", "org.freedesktop.Notifications"); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName("org.freedesktop.Notifications", dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(reply, err)
	}
	return shown
}
