//go:build linux

package approvals_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/keychain/keychaintest"
	"github.com/sluice-mesh/sluice/services/internal/noticestest"
)

// A user runs the mesh with the user's own configuration. For the first approval, the mesh shows a desktop notice that
// contains the approval's id and nothing from the call.
func TestUp_ShowsADesktopNoticeForTheUsersOwnMesh(t *testing.T) {
	t.Parallel()
	address := keychaintest.StartBus(t)
	shown := noticestest.Serve(t, address)
	up := rawmcp.Start(t, rawmcp.Tools)
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Extra: "approvals: {hold: 0s}",
		Policy: "version: 1\nname: p\nserver: raw\ndefault: deny\ntools: {send: {action: require_approval}}\n",
	})
	home := t.TempDir()
	if err := os.Symlink(filepath.Dir(s.Config), filepath.Join(home, "sluice")); err != nil {
		t.Fatal(err)
	}
	s.Config = filepath.Join(home, "sluice", filepath.Base(s.Config))
	s.Env = append(s.Env, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home, "HOME="+home, "DBUS_SESSION_BUS_ADDRESS="+address)
	f := &rawmesh.Mesh{Upstream: up, Stack: stack.Start(t, s).Stack}
	f.Connect(t).Call("send", `{}`)
	want := "1 call waits for approval: `sluice approvals show " + f.AwaitOnePending(t) + "`"
	select {
	case got := <-shown:
		if got.Body != want || len(got.Actions) > 0 || strings.Contains(got.String(), "send") {
			t.Errorf("the notice is %v, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Error("no notice")
	}
}
