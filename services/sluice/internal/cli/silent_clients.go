package cli

import (
	"cmp"
	"fmt"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// silentClient is a client that has not responded to a form for its user. The gateway sends it no more forms before
// Until.
type silentClient struct {
	Tenant  string    `json:"tenant"`
	Subject string    `json:"subject"`
	Agent   string    `json:"agent,omitempty"`
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Until   time.Time `json:"until"`
}

func silentClients(g *gatewayv1.GetStatusResponse) (out []silentClient) {
	for _, c := range g.GetSilentClients() {
		out = append(out, silentClient{
			Tenant: c.GetTenant(), Subject: c.GetSubject(), Agent: c.GetAgent(), Name: c.GetName(), Version: c.GetVersion(), Until: c.GetUntil().AsTime().Local(),
		})
	}
	return out
}

// String describes the client in one line.
func (c silentClient) String() string {
	return fmt.Sprintf("%s %s of %s did not answer a form; its users are not asked until %s",
		safetext.Line(cmp.Or(c.Name, "a client without a name")), safetext.Line(c.Version), safetext.Line(c.Subject), c.Until.Format(time.DateTime))
}
