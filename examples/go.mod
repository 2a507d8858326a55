module github.com/sluice-mesh/sluice/examples

go 1.26.0
