package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

const (
	// shortest is how many characters of an identifier a person must give at least.
	shortest = 8
	// idsAtOnce is how many approvals one request lists.
	idsAtOnce = 1000
)

func (t *tool) listAll() string { return t.command("approvals list --all") }

// whole returns the identifier of the only approval whose identifier begins with given.
func (t *tool) whole(ctx context.Context, client approvalv1.ApprovalServiceClient, given string) (string, error) {
	switch _, err := uuid.Parse(given); {
	case err == nil:
		return given, nil
	case given == "":
		return "", usageError{fmt.Errorf("the id is empty: %s prints the ids", t.listAll())}
	case len(given) < shortest:
		return "", fmt.Errorf("the id %q is too short: give at least the first %d characters of an id; %s prints the ids", given, shortest, t.listAll())
	}
	found, err := t.beginning(ctx, client, given)
	if err != nil {
		return "", err
	}
	return t.only(found, given)
}

// only returns the only identifier in found, or an error if found has none or several.
func (t *tool) only(found []string, given string) (string, error) {
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no approval has an id that begins with %q: %s prints the ids", given, t.listAll())
	case 1:
		return found[0], nil
	default:
		return "", fmt.Errorf("%d approvals have an id that begins with %q: give more characters of the id; %s prints the ids", len(found), given, t.listAll())
	}
}

// beginning returns the identifiers that begin with text, among all approvals that the person may see.
func (t *tool) beginning(ctx context.Context, client approvalv1.ApprovalServiceClient, text string) (found []string, err error) {
	req := &approvalv1.ListApprovalsRequest{PageSize: idsAtOnce}
	for {
		resp, err := client.ListApprovals(ctx, req)
		if err != nil {
			return nil, t.explain(err)
		}
		for _, a := range resp.GetApprovals() {
			if strings.HasPrefix(a.GetId(), strings.ToLower(text)) {
				found = append(found, a.GetId())
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return found, nil
		}
	}
}
