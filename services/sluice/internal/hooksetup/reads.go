package hooksetup

import (
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

// readsOf returns the paths of the files and directories that a call reads, as written in the arguments. For a search,
// readsOf returns only the directory, although the search also reads its content.
func readsOf(tool string, arguments jsontext.Value) (out []string) {
	var all map[string]any
	if err := json.Unmarshal(arguments, &all); err != nil {
		return nil
	}
	for _, name := range []string{"file_path", "filePath", "absolute_path", "path", "dir_path"} {
		if path, _ := all[name].(string); path != "" {
			out = append(out, path)
		}
	}
	if len(out) == 0 && hosttools.SearchesFiles(tool) {
		out = []string{"."}
	}
	switch tool {
	case "Glob", "glob":
		pattern, _ := all["pattern"].(string)
		for _, base := range out {
			out = append(out, inDirectory(base, literal(pattern)))
		}
	case "read_many_files":
		patterns, _ := all["include"].([]any)
		for _, item := range patterns {
			pattern, _ := item.(string)
			out = append(out, literal(pattern))
		}
	}
	return out
}

// literal returns the part of a pattern before its first wildcard.
func literal(pattern string) string {
	if i := strings.IndexAny(pattern, "*?[{"); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

// inDirectory prepends a directory to a relative path. It returns other paths unchanged.
func inDirectory(dir, path string) string {
	if filepath.IsAbs(path) || strings.HasPrefix(path, "~") {
		return path
	}
	return dir + string(filepath.Separator) + path
}
