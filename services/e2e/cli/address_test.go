package cli_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// The error for an invalid address describes what is invalid. The error for an address at which no server listens
// contains the address and the options that set it.
func TestCLI_InvalidOrUnreachableAddressIsReported(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "")
	edge := strings.TrimPrefix(f.URL, "http://")
	free := stack.FreeAddr(t)
	file := stack.WriteFolder(t, map[string]string{"other.yaml": "grpc: " + free + "\n"}) + "/other.yaml"
	const other = ": is it up? To use another address, set --addr, or name a configuration with --config or SLUICE_CONFIG ("
	for _, tt := range []struct {
		name string
		args []string
		env  string
		code int
		want string
	}{
		{"no port", []string{"status", "--addr", "localhost"}, "", 2, `sluice: --addr must be the gRPC address as HOST:PORT, is "localhost", which has no port`},
		{"a URL", []string{"status"}, "SLUICE_ADDR=http://" + f.GRPC, 2, `sluice: SLUICE_ADDR must be the gRPC address as HOST:PORT, is the URL "http://` + f.GRPC + `"`},
		{"that of MCP", []string{"status", "--addr", edge}, "", 1, "the server at " + edge + " (--addr) does not speak gRPC: is this the address of MCP?"},
		{"an unused address", []string{"status", "--addr", free}, "", 1, "the mesh does not answer at " + free + " (--addr)" + other},
		{"an unused address, in a file", []string{"approvals", "list", "--config", file}, "", 1, "the mesh does not answer at " + free + " (" + file + ")" + other},
		{"that of gRPC, for MCP", []string{"call", "raw", "safe"}, "SLUICE_URL=http://" + f.GRPC, 1, "the server at http://" + f.GRPC + "/mcp/raw does not speak HTTP/1.1: is this the gRPC address?"},
		{"an unused address, for MCP", []string{"call", "raw", "safe"}, "SLUICE_URL=http://" + free, 1, "the mesh does not answer: is it up? To use another address, set SLUICE_URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ran := stack.Run(t, stack.Command{Args: tt.args, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken, tt.env}})
			stack.CheckCommand(t, ran, tt.code, ran.Stderr, tt.want)
		})
	}
}
