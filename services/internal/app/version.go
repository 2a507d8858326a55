package app

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// The linker sets these variables for releases, with flags such as -X …/app.version=v1.2.3. commit is the VCS revision,
// and date is the time of the commit, in the format of RFC 3339.
//
//nolint:gochecknoglobals // the linker can set only package variables
var version, commit, date string

// BuildInfo describes how a program was built. Commit and Date are empty if they are not known.
type BuildInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Date     string `json:"date,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Version returns the version that the linker set. If the linker did not set it, Version returns `devel-` and the first
// 12 digits of the VCS revision. If there is no VCS revision, it returns the module version.
func Version() string { return ThisBuild().Version }

// ThisBuild describes the running program.
func ThisBuild() BuildInfo {
	info, _ := debug.ReadBuildInfo()
	return newBuild(info)
}

// newBuild combines the linker's variables with the given build information, which may be nil.
func newBuild(info *debug.BuildInfo) BuildInfo {
	b := BuildInfo{Version: version, Commit: commit, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		b.Version = cmp.Or(b.Version, "unknown")
		return b
	}
	modified := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = cmp.Or(b.Commit, s.Value)
			if len(s.Value) >= 12 {
				b.Version = cmp.Or(b.Version, "devel-"+s.Value[:12])
			}
		case "vcs.time":
			b.Date = cmp.Or(b.Date, s.Value)
		case "vcs.modified":
			if s.Value == "true" {
				modified = " with changes"
			}
		}
	}
	if b.Commit != "" && commit == "" {
		b.Commit += modified
	}
	if v := info.Main.Version; v != "(devel)" {
		b.Version = cmp.Or(b.Version, v)
	}
	b.Version = cmp.Or(b.Version, "devel")
	return b
}
