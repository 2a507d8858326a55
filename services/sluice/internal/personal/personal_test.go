//go:build linux

package personal_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

func TestFind_FollowsXDG(t *testing.T) {
	home := t.TempDir()
	for name, c := range map[string]struct{ config, data, wantConfig, wantData string }{
		"defaults":      {"", "", filepath.Join(home, ".config"), filepath.Join(home, ".local", "share")},
		"both are set":  {"/c", "/d", "/c", "/d"},
		"relative data": {"/c", "d", "/c", filepath.Join(home, ".local", "share")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", home)
			t.Setenv("XDG_CONFIG_HOME", c.config)
			t.Setenv("XDG_DATA_HOME", c.data)
			got, err := personal.Find()
			want := personal.Paths{Config: c.wantConfig + "/sluice/sluice.yaml", Data: c.wantData + "/sluice"}
			if err != nil || got != want {
				t.Errorf("got %+v, %v; want %+v", got, err, want)
			}
			if got.Policies() != c.wantConfig+"/sluice/policies" || got.Token("cursor") != c.wantData+"/sluice/tokens/agents/cursor" {
				t.Errorf("policies %s, token %s", got.Policies(), got.Token("cursor"))
			}
		})
	}
}

func TestFind_NeedsAHome(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	if got, err := personal.Find(); err == nil {
		t.Errorf("got %+v", got)
	}
}

func TestCheckClient(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{
		"claude-code": true, "a": true, "c2": true, strings.Repeat("a", 32): true,
		"": false, "-a": false, "../x": false, "a/b": false, "A": false, "a b": false, "2c": false, strings.Repeat("a", 33): false, "a\n": false,
	} {
		if err := personal.CheckClient(name); (err == nil) != valid {
			t.Errorf("%q: %v", name, err)
		}
	}
}
