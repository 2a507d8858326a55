//go:build unix && !darwin

package notices

import (
	"context"

	"github.com/godbus/dbus/v5"
)

// show sends a notice to the notification server on the session bus (Desktop Notifications Specification 1.2). It does
// not start a bus.
func (d *Desktop) show(ctx context.Context, body string) error {
	conn, err := dbus.SessionBusPrivateNoAutoStartup(dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the notice was shown, or the call has failed
	if err := conn.Auth(nil); err != nil {
		return err
	}
	if err := conn.Hello(); err != nil {
		return err
	}
	const systemIcon, systemExpiry = "", int32(-1)
	hints := map[string]dbus.Variant{"category": dbus.MakeVariant("im.received")}
	call := conn.Object("org.freedesktop.Notifications", "/org/freedesktop/Notifications").CallWithContext(ctx, "org.freedesktop.Notifications.Notify", 0,
		"Sluice", d.shown, systemIcon, desktopTitle, body, []string{}, hints, systemExpiry)
	return call.Store(&d.shown)
}
