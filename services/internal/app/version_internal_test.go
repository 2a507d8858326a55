package app

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestNewBuild_DescribesHowTheProgramWasBuilt(t *testing.T) {
	t.Parallel()
	const revision = "0123456789abcdef0123456789abcdef01234567"
	settings := func(kv ...string) (all []debug.BuildSetting) {
		for i := 0; i < len(kv); i += 2 {
			all = append(all, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return all
	}
	tests := []struct {
		name string
		info *debug.BuildInfo
		want BuildInfo
	}{
		{"without build information", nil, BuildInfo{Version: "unknown"}},
		{"without a repository", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, BuildInfo{Version: "devel"}},
		{"go install", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, BuildInfo{Version: "v1.2.3"}},
		{
			"a clean repository",
			&debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-x"}, Settings: settings("vcs.revision", revision, "vcs.time", "2026-11-28T00:00:00Z", "vcs.modified", "false")},
			BuildInfo{Version: "devel-0123456789ab", Commit: revision, Date: "2026-11-28T00:00:00Z"},
		},
		{
			"a repository with changes",
			&debug.BuildInfo{Settings: settings("vcs.revision", revision, "vcs.modified", "true")},
			BuildInfo{Version: "devel-0123456789ab", Commit: revision + " with changes"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.want.Go, tt.want.Platform = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
			if got := newBuild(tt.info); got != tt.want {
				t.Errorf("newBuild = %+v, want %+v", got, tt.want)
			}
		})
	}
}
