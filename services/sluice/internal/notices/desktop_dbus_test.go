//go:build linux

package notices_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/sluice-mesh/sluice/services/internal/keychain/keychaintest"
	"github.com/sluice-mesh/sluice/services/internal/noticestest"
	"github.com/sluice-mesh/sluice/services/sluice/internal/notices"
)

// The second notice replaces the first notice. Notices have no buttons.
func TestDesktop_ShowsNoticesOnTheSessionBus(t *testing.T) {
	address := keychaintest.StartBus(t)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
	var d notices.Desktop
	if err := d.Show(t.Context(), "one"); err == nil || !strings.Contains(err.Error(), "org.freedesktop.Notifications") {
		t.Errorf("without a notification server: %v", err)
	}
	shown := noticestest.Serve(t, address)
	for _, want := range []noticestest.Notice{
		{App: "Sluice", Title: "Sluice", Body: "one", Actions: []string{}},
		{App: "Sluice", Title: "Sluice", Body: "two", Actions: []string{}, Replaces: 7},
	} {
		if err := d.Show(t.Context(), want.Body); err != nil {
			t.Fatal(err)
		}
		if got := <-shown; got.String() != want.String() {
			t.Errorf("the notice is %v, want %v", got, want)
		}
	}
}

// A bus that does not respond delays a notice only until the context is done.
func TestDesktop_ShowEndsWithTheContext(t *testing.T) {
	address := keychaintest.StartBus(t)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	called, ended := make(chan struct{}), make(chan struct{})
	defer close(ended)
	hang := map[string]any{"Notify": func(string, uint32, string, string, string, []string, map[string]dbus.Variant, int32) (uint32, *dbus.Error) {
		close(called)
		<-ended
		return 1, nil
	}}
	if err := conn.ExportMethodTable(hang, "/org/freedesktop/Notifications", "org.freedesktop.Notifications"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName("org.freedesktop.Notifications", dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-called
		cancel()
	}()
	began := time.Now()
	if err := new(notices.Desktop).Show(ctx, "one"); err == nil || time.Since(began) > 4*time.Second {
		t.Errorf("Show returned %v after %v", err, time.Since(began))
	}
}
