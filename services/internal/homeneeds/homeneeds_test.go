package homeneeds_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/homeneeds"
)

func TestDetect(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"npx -y mcp-server-kubernetes":                        ".kube",
		"npx -y kubernetes-mcp-server@latest":                 ".kube",
		"/usr/local/bin/kubectl-mcp serve":                    ".kube",
		"uvx awslabs.eks-mcp-server@latest --allow-write":     ".kube .aws",
		"uvx awslabs.aws-api-mcp-server@latest":               ".aws",
		"npx -y @azure/mcp@latest server start":               ".azure",
		"npx -y @google-cloud/gcloud-mcp":                     ".config/gcloud",
		"gh mcp":                                              ".config/gh",
		"docker run -i --rm ghcr.io/github/github-mcp-server": ".docker",
		"uvx mcp-server-git --repository /srv/aws":            ".gitconfig .ssh",
		"npm exec -- @modelcontextprotocol/server-git":        ".gitconfig .ssh",
		"uv --directory /srv/x run server.py":                 "", // the directory is taken as the package
		"npx -y @modelcontextprotocol/server-filesystem /aws": "",
		"npx -y @modelcontextprotocol/server-github":          "", // uses a token in its environment
		"npx -y @playwright/mcp":                              "",
		"python3 /home/ana/kubernetes/server.py":              ".kube",
		"/opt/gateway":                                        "",
		"npx -y":                                              "",
		"":                                                    "",
	} {
		if got := homeneeds.Detect(strings.Fields(command)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %v, want %s", command, got, want)
		}
	}
	if got, want := homeneeds.Line([]string{".kube", ".aws"}), "sandbox: {home: [.kube, .aws]}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
