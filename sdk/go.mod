module github.com/sluice-mesh/sluice/sdk

go 1.26.0
