package wasmagent

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/modules"
)

// Build implements [app.Build] for the wasmagent service.
func Build(_ context.Context, mesh app.Mesh) (rpc.Service, error) {
	gateway, err := mesh.Conn(authv1.Role_ROLE_GATEWAY)
	if err != nil {
		return nil, err
	}
	listed := make(map[string]modules.Listed)
	for name, g := range mesh.File.Agents.Guests {
		listed[name] = modules.Listed{Path: mesh.File.Path(g.Module), SHA256: g.SHA256}
	}
	source, err := mesh.File.Stores.Agents.Resolve(mesh.File, mesh.Env)
	if err != nil {
		return nil, fmt.Errorf("stores.agents: %w", err)
	}
	bucket, err := mesh.File.Stores.AgentStates.Resolve(mesh.File, mesh.Env)
	if err != nil {
		return nil, fmt.Errorf("stores.agent_states: %w", err)
	}
	var accepts []ed25519.PublicKey
	for _, key := range mesh.File.Agents.AcceptKeys {
		text, _ := hex.DecodeString(key) // the configuration accepts only hexadecimal keys
		accepts = append(accepts, text)
	}
	providers := make(map[string]models.Provider)
	for name, p := range mesh.File.Agents.Providers {
		key, err := p.Key.Resolve(mesh.File, mesh.Env)
		if err != nil {
			return nil, fmt.Errorf("agents.providers.%s.key: %w", name, err)
		}
		provider := models.Provider{Kind: p.Kind, URL: p.URL, Key: key, MaxTokens: p.MaxTokens, Prices: make(map[string]models.Price), Retry: models.Retry{Tries: p.Tries, Backoff: p.Backoff}}
		for model, cost := range p.Prices {
			provider.Prices[model] = models.Price(cost)
		}
		providers[name] = provider
	}
	server := ""
	for _, name := range slices.Sorted(maps.Keys(mesh.File.Servers)) {
		if g := mesh.File.Servers[name].GRPC; g != nil && g.Target == "wasmagent" {
			server = name
			break
		}
	}
	return New(
		Config{Data: mesh.File.Path(mesh.File.Data), Source: source, Bucket: bucket, ApprovalWait: mesh.File.Approvals.Hold, Guests: listed, AcceptedKeys: accepts, Workers: mesh.File.Agents.Workers,
			Models: providers, Model: mesh.File.Agents.Model, Server: server, PersonDay: PersonDay(mesh.File.Agents.PersonDay),
			Turns: turnLimits(mesh.File.Agents.Turns), Questions: questionLimits(mesh.File.Agents.Questions), QuestionTimeout: mesh.File.Agents.Questions.Timeout, FirstByteTimeout: mesh.File.Agents.Questions.FirstByte,
		},
		Deps{Gateway: gatewayv1.NewGatewayServiceClient(gateway), Log: mesh.Log},
	)
}

func turnLimits(p config.Places) ConcurrencyLimits {
	return ConcurrencyLimits{Total: p.Places, PerPerson: p.PersonPlaces, MaxQueued: p.Queue, MaxQueuedPerPerson: p.PersonQueue, MaxWait: p.Wait}
}

func questionLimits(q config.Questions) ConcurrencyLimits {
	return ConcurrencyLimits{Total: q.Places, PerPerson: q.PersonPlaces, MaxQueued: q.Queue, MaxQueuedPerPerson: q.PersonQueue, MaxWait: q.Wait}
}
