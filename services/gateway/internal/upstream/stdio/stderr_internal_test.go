package stdio

import "testing"

// Errors quote the line that says why the program has failed, although npm writes further lines after it.
func TestLine_IgnoresWhatNpmWritesLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"npm":      {[]string{"npm error code ENOENT", "npm error enoent no such file", "npm error A complete log of this run can be found in: /x", ""}, "npm error enoent no such file"},
		"only it":  {[]string{"npm error A complete log of this run can be found in: /x"}, "npm error A complete log of this run can be found in: /x"},
		"no npm":   {[]string{"first", "last", " "}, "last"},
		"no lines": {nil, ""},
	} {
		var tail stderrTail
		for _, line := range c.lines {
			tail.add(line)
		}
		if got := tail.line(); got != c.want {
			t.Errorf("%s: the line is %q, want %q", name, got, c.want)
		}
	}
}
