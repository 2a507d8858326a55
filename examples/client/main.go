// Command client asks a running mesh how its policy evaluates a call, and prints the decision and its reason. It uses
// only the published API, as a program outside this project would.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:9090", "the gRPC address of the mesh, on this machine")
	tokenFile := flag.String("token-file", ".sluice/tokens/operator", "the file with the operator's token")
	server := flag.String("server", "demo", "the server of the call")
	tool := flag.String("tool", "", "the tool of the call")
	flag.Parse()
	if err := run(*addr, *tokenFile, *server, *tool); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func run(addr, tokenFile, server, tool string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if tool == "" {
		return errors.New("name a tool with -tool")
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return fmt.Errorf("read the operator's token: %w", err)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("reach %s: %w", addr, err)
	}
	defer func() { _ = conn.Close() }()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
	resp, err := policyv1.NewPolicyServiceClient(conn).ExplainCall(ctx, &policyv1.ExplainCallRequest{
		Call:    &policyv1.Call{Server: server, Name: tool},
		Subject: &identityv1.Principal{Tenant: "default", Subject: "example", Role: authv1.TokenRole_TOKEN_ROLE_AGENT},
	})
	if err != nil {
		return fmt.Errorf("explain the call: %w", err)
	}
	fmt.Printf("%s %s\n%s\n", resp.GetDecision().GetEffect(), resp.GetDecision().GetCode(), resp.GetWhy())
	return nil
}
