module dsmd

go 1.26
