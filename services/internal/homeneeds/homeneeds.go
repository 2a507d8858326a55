// Package homeneeds knows which files in HOME well-known programs use to log in. A stdio server has a private HOME, so
// it finds such a file only if the server's configuration lists the file in sandbox.home.
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
	// words matches names of programs and packages. In a name, words are separated by characters other than letters and
	// digits.
	words *regexp.Regexp
	// entries are paths relative to HOME.
	entries []string
}

func words(names string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)(?:^|[^a-z0-9])(?:` + names + `)(?:$|[^a-z0-9])`)
}

// needs lists well-known programs and the files that they read. The paths are the defaults of the variables KUBECONFIG,
// AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE, GH_CONFIG_DIR, CLOUDSDK_CONFIG, AZURE_CONFIG_DIR and DOCKER_CONFIG. The
// paths of git and OpenSSH are fixed.
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

// runners lists programs that run a package or script. Their first argument that is not an option is the name of the
// package or script.
var runners = map[string]bool{
	"npx": true, "npm": true, "pnpm": true, "pnpx": true, "yarn": true, "bunx": true, "bun": true, "uvx": true, "uv": true, "pipx": true,
	"node": true, "python": true, "python3": true, "deno": true,
}

// Detect returns the paths that the program of a command probably reads, relative to HOME, as sandbox.home lists them.
// It recognizes programs and packages only by their names, so it can miss a path, and it can return a path that the
// program does not read. It returns nil for an unknown program.
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

// Line returns the line for a configuration file that makes the paths readable.
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

// packageName returns the name of a package without its version. For a path, it returns the last two elements.
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
