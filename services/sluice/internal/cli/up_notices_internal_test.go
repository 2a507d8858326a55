package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

func TestDesktopNotices_AreOnForTheUsersOwnMesh(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "APPDATA", "LOCALAPPDATA"} {
		t.Setenv(name, home)
	}
	paths, err := personal.Find()
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(home, "other.yaml")
	for _, tt := range []struct {
		file, text string
		want       bool
	}{
		{paths.Config, "", true},
		{paths.Config, "approvals: {notify: {desktop: false}}", false},
		{other, "", false},
		{other, "approvals: {notify: {desktop: true}}", true},
	} {
		if err := os.MkdirAll(filepath.Dir(tt.file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(tt.file, []byte("data: data\n"+tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := config.Load(tt.file, app.Env)
		if err != nil {
			t.Fatal(err)
		}
		if got := showsOnDesktop(f); got != tt.want {
			t.Errorf("%s with %q: %v", tt.file, tt.text, got)
		}
	}
	if showsOnDesktop(new(config.File)) {
		t.Error("without a configuration, notices are shown")
	}
}

func TestPendingNotice_HasCountsAndAnID(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]approval.Pending{
		"1 call waits for approval: `sluice approvals show a`":                                                     {Total: 1, New: 1, Newest: "a"},
		"3 calls wait for approval, 2 of them new: `sluice approvals list`; the newest: `sluice approvals show c`": {Total: 3, New: 2, Newest: "c"},
	} {
		if got := pendingNotice("sluice", p); got != want {
			t.Errorf("the notice is %q, want %q", got, want)
		}
	}
}
