package arch_test

import (
	"slices"
	"strings"
	"testing"
)

// gatewayLayers contains the packages of gateway/internal from the lowest layer to the highest. A package may import
// only packages of lower layers. A directory also covers the packages below it that are not listed separately.
var gatewayLayers = [][]string{
	{"arguments", "broadcast", "forms", "httpclient", "limits", "mcp", "mcpschema", "npx", "programs", "toolreport/toolreporttest"}, // values and limits
	{"jsonrpc", "meters", "refusal"}, // messages and refusals
	{"aggregate", "bodyreader", "httpserver", "question", "redaction", "spans", "toolreport"}, // built on messages
	{"upstream"},    // connections to servers
	{"accesstoken"}, // the tokens that these connections need
	{"paramheaders", "session", "upstream/grpctools", "upstream/hosted", "upstream/stdio", "upstream/streamable", "upstream/upstreamtest"}, // transports, and sessions with clients
	{"discovery"},                        // the features that each server lists
	{"servers", "visibility"},            // the configured servers, and the features that callers may see
	{"decisioncache", "tasks"},           // cached decisions, and calls that wait
	{"attempt"},                          // one attempt at a call
	{"approvals"},                        // decisions by people
	{"pipeline"},                         // decide, approve, reserve, record, forward
	{"dispatch"},                         // requests to one server
	{"protocol", "sse"},                  // messages from callers
	{"protocol/allservers"},              // the URL for all servers
	{"protocol/v2025", "protocol/v2026"}, // the families of MCP revisions
	{"mcpserver"},                        // endpoints
	{"gatewaytest"},                      // gateways for tests of other packages
}

// gatewayLayer returns the layer of a package below gateway/internal, and the package's entry in gatewayLayers. If
// there is no such entry, it returns -1.
func gatewayLayer(pkg string) (layer int, entry string) {
	for {
		for i, layer := range gatewayLayers {
			if slices.Contains(layer, pkg) {
				return i, pkg
			}
		}
		at := strings.LastIndex(pkg, "/")
		if at < 0 {
			return -1, pkg
		}
		pkg = pkg[:at]
	}
}

// TestImports_PackagesOfTheGatewayImportLowerLayersOnly checks that each package of gateway/internal has a layer, and
// that no package imports a package of the same layer or of a higher layer.
func TestImports_PackagesOfTheGatewayImportLowerLayersOnly(t *testing.T) {
	t.Parallel()
	const inside = "gateway/internal/"
	checked := 0
	eachImport(t, func(file, imp string) {
		target, ours := strings.CutPrefix(imp, module+inside)
		own, in := strings.CutPrefix(file, inside)
		if !ours || !in || isTest(file) {
			return
		}
		from, entry := gatewayLayer(own[:strings.LastIndex(own, "/")])
		to, other := gatewayLayer(target)
		switch checked++; {
		case from < 0 || to < 0:
			t.Errorf("%s imports %s: add both packages to gatewayLayers", file, imp)
		case entry != other && to >= from:
			t.Errorf("%s must not import %s, which is in the same layer or in a higher one", file, imp)
		}
	})
	if checked < 100 {
		t.Errorf("only %d imports were checked", checked)
	}
}
