package gateway

import "testing"

// The expected identities come from sluice/approval/v1/binding.proto.
func TestIdentity_MatchesTheContract(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]Server{
		"http https://api.example.com/mcp":        {URL: "https://API.example.com:443/mcp"},
		"http http://api.example.com/":            {URL: "HTTP://user:secret@api.example.com:80#x"},
		"http http://[::1]:8080/a%2Fb?q=A":        {URL: "http://[::1]:8080/a%2Fb?q=A"},
		`stdio ["node","/opt/pay.js"]`:            {Command: []string{"node", "/opt/pay.js"}},
		`stdio ["sh","-c","echo \"é\\n\"\u0001"]`: {Command: []string{"sh", "-c", "echo \"é\\n\"\x01"}},
		"embedded demo":                           {URL: "http://127.0.0.1:40001/mcp", Embedded: "demo"},
	} {
		if got := s.identity(); got != want {
			t.Errorf("it is %s, want %s", got, want)
		}
	}
}
