package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

const (
	// shortest is the least number of characters that identify an approval, if no other identifier begins with them.
	shortest = 8
	// idsAtOnce is the size of a page of the search.
	idsAtOnce = 1000
)

func (t *tool) listAll() string { return t.command("approvals list --all") }

// whole returns the identifier that begins with given.
func (t *tool) whole(ctx context.Context, client approvalv1.ApprovalServiceClient, given string) (string, error) {
	switch _, err := uuid.Parse(given); {
	case err == nil:
		return given, nil
	case given == "":
		return "", usageError{fmt.Errorf("no id was given: %s prints them", t.listAll())}
	case len(given) < shortest:
		return "", fmt.Errorf("%q is too short: give the first %d characters of an id or more; %s prints them", given, shortest, t.listAll())
	}
	found, err := t.beginning(ctx, client, given)
	if err != nil {
		return "", err
	}
	return t.only(found, given)
}

// only returns the single identifier that was found.
func (t *tool) only(found []string, given string) (string, error) {
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no approval has an id that begins with %q: %s prints them", given, t.listAll())
	case 1:
		return found[0], nil
	default:
		return "", fmt.Errorf("%d approvals have an id that begins with %q: give more of it; %s prints them", len(found), given, t.listAll())
	}
}

// beginning returns the identifiers that begin with a text, of all approvals that the person may see.
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
