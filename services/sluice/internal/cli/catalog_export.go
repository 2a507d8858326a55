package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/sluice/internal/catalogpages"
)

var exportFormats = []string{"html", "md", "json"}

func (t *tool) catalogExport() *cobra.Command {
	var format, out, server string
	c := &cobra.Command{
		Use: "export --format FORMAT [--out FOLDER]", Short: "Write the catalog as a static site, Markdown, or JSON",
		Long: `Write the pages of all tools: as a static site with a search that needs no network, as Markdown,
or as one JSON document to standard output. The folder must be new, or from an earlier run of
this command.`,
		Example: "  " + t.self + " catalog export --format html --out catalogue",
		Args:    args(cobra.NoArgs),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, _ []string) error {
			write, err := exporter(format, out)
			if err != nil {
				return err
			}
			all, err := t.readCatalog(ctx, client, server)
			if err != nil {
				return err
			}
			if write == nil {
				return catalogpages.JSON(t.out, all)
			}
			if err := write(out, all); err != nil {
				return err
			}
			t.printf("%d tools of %d servers are in %s", len(all.Tools), len(all.Servers), out)
			return nil
		}),
	}
	c.Flags().StringVar(&format, "format", "html", "the format: "+strings.Join(exportFormats, ", "))
	c.Flags().StringVar(&out, "out", "", "the folder to write to; not for json")
	c.Flags().StringVar(&server, "server", "", "only this server")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(exportFormats, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	_ = c.MarkFlagDirname("out")
	return c
}

// exporter returns the function that writes the catalog to a directory in the given format. It returns nil for JSON,
// which is written to standard output.
func exporter(format, out string) (func(string, catalogpages.Catalogue) error, error) {
	switch {
	case format == "json" && out != "":
		return nil, usageError{errors.New("--format json is written to standard output: remove --out")}
	case format == "json":
		return nil, nil
	case format != "html" && format != "md":
		return nil, usageError{fmt.Errorf("--format must be one of %s, is %q", strings.Join(exportFormats, ", "), format)}
	case out == "":
		return nil, usageError{errors.New("--out is missing: name the folder to write to")}
	case format == "md":
		return catalogpages.Markdown, nil
	default:
		return catalogpages.HTML, nil
	}
}

// readCatalog reads the pages of the catalog, or only those of the given server if server is not empty. It reports
// progress on standard error every two seconds.
func (t *tool) readCatalog(ctx context.Context, client policyv1.CatalogServiceClient, server string) (catalogpages.Catalogue, error) {
	all := catalogpages.Catalogue{Made: time.Now()}
	servers, err := t.allServers(ctx, client)
	if err != nil {
		return all, err
	}
	for _, s := range servers {
		if server == "" || s.GetName() == server {
			all.Servers = append(all.Servers, s)
		}
	}
	if server != "" && len(all.Servers) == 0 {
		return all, fmt.Errorf("no gateway has reported a server %q: %s lists the servers", server, t.command("catalog servers"))
	}
	tools, err := t.allTools(ctx, client, &policyv1.ListToolsRequest{Server: server, PageSize: maxCatalogPage})
	if err != nil {
		return all, err
	}
	lastReport := time.Now()
	for i, one := range tools {
		page, err := t.catalogPage(ctx, client, one.GetServer(), one.GetName())
		if err != nil {
			return all, err
		}
		all.Tools = append(all.Tools, page)
		if time.Since(lastReport) > 2*time.Second {
			lastReport = time.Now()
			fmt.Fprintf(t.errOut, "sluice: %d of %d tools\n", i+1, len(tools))
		}
	}
	return all, nil
}
