package gateway

import (
	"strings"
	"testing"
)

// A working directory is reported if it contains programs or is inside a program's directory. Other working directories
// are not reported.
func TestWorkFolderExceptions_ReportProgramsInAWorkingFolder(t *testing.T) {
	t.Parallel()
	files := map[string][]string{"": {"/etc"}, "app": {"/srv/app", "/srv/app/dist"}}
	for name, tt := range map[string]struct {
		dir   string
		write []string
		want  string
	}{
		"the folder of a program":      {"/srv/app", nil, "is read only"},
		"inside the folder of one":     {"/srv/app/plugins", nil, "lies in the program of server app"},
		"opened by sandbox.write":      {"/srv/app", []string{"/srv"}, ""},
		"a folder beside it":           {"/srv/application", nil, ""},
		"a folder above it":            {"/srv", nil, ""},
		"a private folder":             {"", nil, ""},
		"a folder of the system's own": {"/etc", nil, "is read only"},
	} {
		s := Server{Dir: tt.dir, Sandbox: Sandbox{Write: tt.write}}
		got := strings.Join(s.workFolderExceptions(files), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q in it", name, got, tt.want)
		}
	}
}
