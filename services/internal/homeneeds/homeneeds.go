// Package homeneeds knows which files in HOME well-known programs log in with. A stdio server has a private HOME, so it
// finds such a file only if its configuration names it in sandbox.home.
package homeneeds

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// need describes programs that read the same files.
type need struct {
	// words matches names of programs and packages. Words are separated by characters other than letters and digits.
	words *regexp.Regexp
	// entries are paths relative to HOME.
	entries []string
}

func words(names string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)(?:^|[^a-z0-9])(?:` + names + `)(?:$|[^a-z0-9])`)
}

// needs lists the programs. The paths are the defaults of variables: KUBECONFIG, AWS_CONFIG_FILE and
// AWS_SHARED_CREDENTIALS_FILE, GH_CONFIG_DIR, CLOUDSDK_CONFIG, AZURE_CONFIG_DIR and DOCKER_CONFIG. Those of git and
// OpenSSH are fixed.
var needs = []need{
	{words(`kubectl|kubernetes|k8s|helm|kubeconfig|openshift`), []string{".kube"}},
	{words(`eks`), []string{".kube", ".aws"}},
	{words(`aws|awslabs|dynamodb|cloudwatch`), []string{".aws"}},
	{words(`gh|github-cli`), []string{".config/gh"}},
	{words(`gcloud|gcp|google-cloud|bigquery|gke`), []string{".config/gcloud"}},
	{words(`az|azure|azmcp|aks`), []string{".azure"}},
	{words(`docker`), []string{".docker"}},
	{words(`git`), []string{".gitconfig", ".ssh"}},
	{words(`ssh`), []string{".ssh"}},
}

// runners are programs whose first argument that is not an option names a package or script.
var runners = map[string]bool{
	"npx": true, "npm": true, "pnpm": true, "pnpx": true, "yarn": true, "bunx": true, "bun": true, "uvx": true, "uv": true, "pipx": true,
	"node": true, "python": true, "python3": true, "deno": true,
}

// Detect returns the paths relative to HOME that the program of a command probably reads, in the form of sandbox.home.
// It knows programs and packages by their names alone, so it may be wrong in both directions. It returns nil for an
// unknown program.
func Detect(command []string) []string {
	name := programOf(command)
	if name == "" {
		return nil
	}
	var found []string
	for _, n := range needs {
		if !n.words.MatchString(name) {
			continue
		}
		for _, entry := range n.entries {
			if !slices.Contains(found, entry) {
				found = append(found, entry)
			}
		}
	}
	return found
}

// Line returns the line of a configuration that makes the paths readable.
func Line(entries []string) string { return "sandbox: {home: [" + strings.Join(entries, ", ") + "]}" }

// programOf returns the name of the program, or of the package that the program runs.
func programOf(command []string) string {
	if len(command) == 0 {
		return ""
	}
	name := filepath.Base(command[0])
	if !runners[strings.TrimSuffix(name, ".exe")] {
		return name
	}
	for _, arg := range command[1:] {
		switch arg {
		case "exec", "dlx", "x", "run", "tool":
			continue
		}
		if !strings.HasPrefix(arg, "-") {
			return packageName(arg)
		}
	}
	return ""
}

// packageName returns the name of a package without its version, and the last two elements of a path.
func packageName(arg string) string {
	arg = filepath.ToSlash(arg)
	if strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") {
		return path.Base(path.Dir(arg)) + "/" + path.Base(arg)
	}
	if at := strings.LastIndex(arg, "@"); at > 0 {
		arg = arg[:at]
	}
	return arg
}
