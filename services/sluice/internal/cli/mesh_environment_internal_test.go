package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// If variables are stored, the mesh gets its programs, proxies and certificates from them instead of from the client
// that starts the mesh. In that case, the mesh gets only the session variables from this client.
func TestMeshEnvironment_IsTheStoredOne(t *testing.T) {
	data := t.TempDir()
	client := []string{"PATH=/evil", "HTTPS_PROXY=http://evil", "SSL_CERT_FILE=/evil", "XDG_CONFIG_HOME=/evil", "DBUS_SESSION_BUS_ADDRESS=unix:new", "LC_ALL=C", "SLUICE_DATA=/evil", "TOKEN=x"}
	got, err := meshEnvironment(data, client)
	if want := client[:6]; err != nil || !slices.Equal(got, want) {
		t.Errorf("nothing is stored: %q, %v; want %q", got, err, want)
	}
	t.Setenv("PATH", "/usr/bin")
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:old")
	t.Setenv("SECRET", "x")
	if err := storeMeshEnvironment(data); err != nil {
		t.Fatal(err)
	}
	got, err = meshEnvironment(data, client)
	if err != nil {
		t.Fatal(err)
	}
	for pair, want := range map[string]bool{
		"PATH=/usr/bin": true, "PATH=/evil": false, "HTTPS_PROXY=http://evil": false, "SSL_CERT_FILE=/evil": false, "XDG_CONFIG_HOME=/evil": false,
		"DBUS_SESSION_BUS_ADDRESS=unix:new": true, "DBUS_SESSION_BUS_ADDRESS=unix:old": false, "LC_ALL=C": true, "SECRET=x": false, "TOKEN=x": false,
	} {
		if slices.Contains(got, pair) != want {
			t.Errorf("%s: %v, want %v: %q", pair, !want, want, got)
		}
	}
	if info, err := os.Stat(environmentPath(data)); err != nil || info.Mode().Perm()&0o077 != 0 && filepath.Separator == '/' {
		t.Errorf("others can read the file: %v, %v", info, err)
	}
	if err := os.WriteFile(environmentPath(data), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := meshEnvironment(data, client); err == nil {
		t.Errorf("a broken file: %q", got)
	}
}
